import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

/**
 * Rate-limiting inside the business transaction, from Java.
 *
 * The order and its token are one transaction: when the order cannot be placed,
 * the token comes back with everything else.
 */
public class Order {
    private static final String TAKE =
        "select allowed, remaining, extract(epoch from retry_after) from dipwell.take(?, ?, ?)";

    static String place(Connection db, int customer, String item) throws SQLException {
        try (PreparedStatement take = db.prepareStatement(TAKE);
             PreparedStatement insert = db.prepareStatement("insert into orders (customer, item) values (?, ?)")) {
            take.setString(1, "orders");
            take.setString(2, "customer:" + customer);
            take.setLong(3, 1);
            String answer;
            try (ResultSet row = take.executeQuery()) {
                row.next();
                if (!row.getBoolean(1)) {
                    db.rollback();
                    return "refused: again in " + Math.round(Math.ceil(row.getDouble(3))) + " s";
                }
                answer = "placed: " + row.getLong(2) + " more now";
            }
            insert.setInt(1, customer);
            insert.setString(2, item);
            insert.executeUpdate();
            db.commit();
            return answer;
        } catch (SQLException e) {
            db.rollback(); // gives the token back
            throw e;
        }
    }

    public static void main(String[] args) throws SQLException {
        try (Connection db = DriverManager.getConnection(args[0])) {
            db.setAutoCommit(false);
            try (Statement s = db.createStatement()) {
                s.execute("create temporary table orders (customer int, item text not null)");
                s.execute("select dipwell.define('orders', rate => 3, per => interval '1 hour')");
                s.execute("select dipwell.reset('orders', 'customer:7')");
                db.commit();
            }
            System.out.println(place(db, 7, "a pump"));
            try {
                place(db, 7, null); // fails: the item is missing
            } catch (SQLException e) {
                System.out.println("failed: its token is back");
            }
            for (String item : new String[] {"a rope", "a bucket", "a lid"}) {
                System.out.println(place(db, 7, item));
            }
        }
    }
}
