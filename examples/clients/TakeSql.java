import java.sql.*;

class TakeSql {
    public static void main(String[] args) throws SQLException {
        try (Connection db = DriverManager.getConnection(args[0]);
             PreparedStatement take = db.prepareStatement("select allowed, remaining, extract(epoch from retry_after) from dipwell.take(?, ?, ?)")) {
            for (int i = 0; i < 3; i++) {
                take.setString(1, "login");
                take.setString(2, "java:7");
                take.setLong(3, 1);
                try (ResultSet row = take.executeQuery()) {
                    row.next();
                    System.out.println(row.getBoolean(1) ? "allowed, " + row.getLong(2) + " left" : "refused, again in " + Math.round(row.getDouble(3)) + " s");
                }
            }
        }
    }
}
