"""Rate-limiting inside the business transaction, from Python.

The order and its token are one transaction: when the order cannot be placed,
the token comes back with everything else.
"""
import sys

import psycopg

from dipwell import Dipwell

PLACE = "insert into orders (customer, item) values (%s, %s)"


def place_order(conn, customer, item):
    with conn.transaction():  # commits, or rolls back on an error
        r = Dipwell(conn).take("orders", f"customer:{customer}")
        if not r.allowed:
            return f"refused: again in {r.retry_after.total_seconds():.0f} s"
        conn.execute(PLACE, (customer, item))
        return f"placed: {r.remaining} more now"


def main(address):
    with psycopg.connect(address, autocommit=True) as conn:
        conn.execute("create temporary table orders (customer int, item text not null)")
        d = Dipwell(conn)
        d.install()  # the schema; the second time it does nothing
        d.define("orders", rate=3, per="1h")
        d.reset("orders", "customer:7")
        print(place_order(conn, 7, "a pump"))
        try:
            place_order(conn, 7, None)  # fails: the item is missing
        except psycopg.IntegrityError:
            print("failed: its token is back")
        for item in ("a rope", "a bucket", "a lid"):
            print(place_order(conn, 7, item))


if __name__ == "__main__":
    main(sys.argv[1])
