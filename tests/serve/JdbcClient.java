import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;

/** Asks a server of Headrace's state as tools over JDBC do, and prints what it said as JSON. */
public class JdbcClient {
    static List<String> column(ResultSet rows, String... names) throws SQLException {
        List<String> all = new ArrayList<>();
        while (rows.next()) {
            List<String> words = new ArrayList<>();
            for (String name : names) words.add(rows.getString(name));
            all.add('"' + String.join(" ", words) + '"');
        }
        return all;
    }

    public static void main(String[] args) throws SQLException {
        String url = "jdbc:postgresql://127.0.0.1:" + args[0] + "/tweets?user=me";
        try (Connection connection = DriverManager.getConnection(url)) {
            DatabaseMetaData about = connection.getMetaData();
            List<String> tables = column(about.getTables(null, null, "%", new String[] {"TABLE"}), "TABLE_NAME");
            List<String> columns = column(about.getColumns(null, "public", "hourly", "%"), "COLUMN_NAME", "TYPE_NAME");
            List<String> key = column(about.getPrimaryKeys(null, "public", "hourly"), "COLUMN_NAME");
            List<String> imported = column(about.getImportedKeys(null, "public", "hourly"), "FKCOLUMN_NAME");
            boolean keywords = !about.getSQLKeywords().isEmpty();

            List<Long> views = new ArrayList<>();
            PreparedStatement point = connection.prepareStatement("SELECT views FROM totals WHERE tweet = ?");
            for (int i = 0; i < 8; i++) {  // From the fifth time on the driver has the statement prepared by name.
                point.setString(1, "a");
                ResultSet row = point.executeQuery();
                row.next();
                views.add(row.getLong(1));
            }

            connection.setAutoCommit(false);
            Statement statement = connection.createStatement();
            statement.setFetchSize(1);
            ResultSet rows = statement.executeQuery("SELECT * FROM hourly");
            int count = 0;
            while (rows.next()) count++;
            Savepoint savepoint = connection.setSavepoint();
            String refused = "";
            try {
                connection.createStatement().executeQuery("SELECT nope FROM totals");
            } catch (SQLException error) {
                refused = error.getSQLState();
            }
            connection.rollback(savepoint);
            ResultSet after = connection.createStatement().executeQuery("SELECT views FROM totals WHERE tweet = 'a'");
            after.next();

            System.out.printf(
                "{\"tables\": %s, \"columns\": %s, \"key\": %s, \"imported\": %s, \"keywords\": %s, \"views\": %s, "
                    + "\"cursor\": %d, \"refused\": \"%s\", \"after the savepoint\": %d}%n",
                tables, columns, key, imported, keywords, views, count, refused, after.getLong(1));
            connection.commit();
        }
    }
}
