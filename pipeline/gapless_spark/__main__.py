"""`python -m gapless_spark`."""

from gapless_spark.cli import main

if __name__ == "__main__":
    main()
