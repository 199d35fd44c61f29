"""Rate-limiting inside the business transaction, from Python.

The order and its token are one transaction: when the order cannot be placed,
the token comes back with everything else.
"""
import sys

import psycopg2

PLACE = "insert into orders (customer, item) values (%s, %s)"


def take(cursor, limit, key, cost=1):
    """Returns (allowed, remaining, retry_after); nothing is taken when refused."""
    cursor.execute(
        "select allowed, remaining, retry_after from dipwell.take(%s, %s, %s)",
        (limit, key, cost),
    )
    return cursor.fetchone()


def place_order(connection, customer, item):
    with connection, connection.cursor() as cursor:  # commits, or rolls back on an error
        allowed, remaining, retry_after = take(cursor, "orders", f"customer:{customer}")
        if not allowed:
            return f"refused: again in {retry_after.total_seconds():.0f} s"
        cursor.execute(PLACE, (customer, item))
        return f"placed: {remaining} more now"


def main(dsn):
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("create temporary table orders (customer int, item text not null)")
        cursor.execute("select dipwell.define('orders', rate => 3, per => interval '1 hour')")
        cursor.execute("select dipwell.reset('orders', 'customer:7')")
    print(place_order(connection, 7, "a pump"))
    try:
        place_order(connection, 7, None)  # fails: the item is missing
    except psycopg2.IntegrityError:
        print("failed: its token is back")
    for item in ("a rope", "a bucket", "a lid"):
        print(place_order(connection, 7, item))
    connection.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
