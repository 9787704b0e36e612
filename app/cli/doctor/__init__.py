"""`gapless doctor`: what an installation consists of and what is wrong with it."""
