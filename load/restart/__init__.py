"""Dead letters across a stop of everything: does each message end where it should?"""
