"""The analysis job: statistics of a log, as tables and as one HTML page.

`events.py` reduces messages to the columns that are counted. `volume.py`, `conversation.py` and `rates.py`
have one function for each metric, from DataFrame to DataFrame; hours and days are in the time zone of the
session (`spark.sql.session.timeZone`). `delivery.py` queries the live database. `job.py` runs them;
`figures.py`, `chapters/` and `page.py` draw the page.
"""
