# The service, for a Postgres and a Redis or Valkey that are there. `compose.yaml` starts them beside it.
#
#   docker build -t gapless .
#   docker run -p 127.0.0.1:8080:8080 -e GAPLESS_ALLOW_ANONYMOUS=1 \
#       -e GAPLESS_DATABASE_URL=postgresql://… -e GAPLESS_REDIS_URL=redis://… gapless
#
# The container listens beyond loopback, so the service starts only with the explicit
# GAPLESS_ALLOW_ANONYMOUS=1: whoever reaches it may read and write. `.ci/image` builds and tries this without an
# engine.
#
# The digest is that of the multi-platform index of 3.11.16. A newer base: `docker buildx imagetools inspect TAG`.
ARG BASE=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS build
COPY requirements/runtime.txt /tmp/runtime.txt
# The installer itself is of no use to the service.
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /tmp/runtime.txt \
    && /opt/venv/bin/pip uninstall -q -y setuptools pip
COPY . /opt/gapless
RUN python3 -m compileall -q -j 0 /opt/gapless

FROM ${BASE}
RUN useradd --system --uid 10001 --home-dir /var/lib/gapless --create-home --shell /usr/sbin/nologin gapless \
    && chmod 700 /var/lib/gapless
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/gapless /opt/gapless
ENV PATH=/opt/venv/bin:$PATH \
    GAPLESS_HOST=0.0.0.0 \
    GAPLESS_PORT=8080 \
    GAPLESS_HOME=/var/lib/gapless
USER gapless
WORKDIR /var/lib/gapless
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 CMD ["python", "-I", "-c", \
    "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['GAPLESS_PORT'] + '/healthz', timeout=2)"]
ENTRYPOINT ["python", "-I", "/opt/gapless/app/launch.py", "app.cli"]
CMD ["serve"]
