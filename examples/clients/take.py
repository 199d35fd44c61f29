import sys

from dipwell import Dipwell

if sys.argv[1].startswith("postgres"):
    import psycopg

    d = Dipwell(psycopg.connect(sys.argv[1], autocommit=True))
else:
    d = Dipwell.http(sys.argv[1])
for _ in range(3):
    r = d.take("login", "python:7")
    print(f"allowed, {r.remaining} left" if r.allowed else f"refused, again in {r.retry_after.total_seconds():.0f} s")
