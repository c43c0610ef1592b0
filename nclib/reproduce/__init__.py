"""`nclib reproduce`: notebooks executed, what they cost, the front page."""
