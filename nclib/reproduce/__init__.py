"""`nclib reproduce`: notebooks executed, as soon as their runs are there."""
