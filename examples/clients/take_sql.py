import sys

import psycopg2

db = psycopg2.connect(sys.argv[1])
for _ in range(3):
    with db, db.cursor() as cursor:  # one transaction: the token comes back if it fails
        cursor.execute("select allowed, remaining, retry_after from dipwell.take(%s, %s, %s)", ("login", "python:7", 1))
        allowed, remaining, retry_after = cursor.fetchone()  # bool, int, timedelta
    print(f"allowed, {remaining} left" if allowed else f"refused, again in {retry_after.total_seconds():.0f} s")
