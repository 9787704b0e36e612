"""Drill: the lists of clients that official clients keep, while a worker is killed."""
