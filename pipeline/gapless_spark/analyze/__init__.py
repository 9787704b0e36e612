"""The analysis job: what a log holds, as tables and as one HTML page.

`events.py` turns messages into the slim rows everything is counted from. `volume.py`, `conversation.py` and
`rates.py` hold one function a metric, DataFrame in and DataFrame out; all of them take hours and days in the
time zone of the session (`spark.sql.session.timeZone`). `delivery.py` asks the live database. `job.py` puts
them in order; `figures.py`, `chapters/` and `page.py` draw.
"""
