// Orders behind inboxd: Java 17, JDBC and the JDK's HTTP server.
// Debian: libpostgresql-jdbc-java. To try it, without a build:
//   java -cp /usr/share/java/postgresql.jar App.java
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.concurrent.Executors;

public class App {
    // One connection a thread; a connection that gave an error is replaced.
    static final ThreadLocal<Connection> DB = new ThreadLocal<>();

    static Connection connect() throws SQLException {
        if (DB.get() != null) return DB.get();
        URI u = URI.create(System.getenv("DATABASE_URL"));
        String[] login = u.getUserInfo().split(":", 2);
        DB.set(DriverManager.getConnection(
            "jdbc:postgresql://" + u.getHost() + ":" + u.getPort() + u.getPath(), login[0], login[1]));
        DB.get().setAutoCommit(false);
        return DB.get();
    }

    /** Commits the key and the order together; false: they were committed before. */
    static boolean takeOrder(String consumer, String key, String fingerprint, String order) throws SQLException {
        Connection db = connect();
        try (var claim = db.prepareStatement("select inbox_claim(?, ?, ?)");
             var insert = db.prepareStatement("insert into orders (order_id, customer, amount_cents) "
                 + "select order_id, customer, amount_cents from json_to_record(?::json) "
                 + "as o (order_id text, customer text, amount_cents bigint)")) {
            claim.setString(1, consumer);
            claim.setString(2, key);
            claim.setString(3, fingerprint);
            var first = claim.executeQuery();
            first.next();
            boolean isNew = first.getBoolean(1);
            insert.setString(1, order);
            if (isNew) insert.executeUpdate();
            db.commit();
            return isNew; // only now it is committed
        } catch (SQLException e) {
            DB.remove();
            db.close(); // rolls back
            throw e;
        }
    }

    static int message(HttpExchange x) throws IOException {
        var h = x.getRequestHeaders();
        String body = new String(x.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
        String key = h.getFirst("Idempotency-Key"), consumer = h.getFirst("Inbox-Consumer");
        if (key == null || consumer == null) return 400; // this message will never do: it is parked
        try {
            boolean first = takeOrder(consumer, key, h.getFirst("Inbox-Fingerprint"), body);
            x.getResponseHeaders().set("Inbox-Outcome", first ? "processed" : "duplicate");
            return 200;
        } catch (SQLException e) {
            String state = String.valueOf(e.getSQLState());
            if (state.equals("IB422")) return 422; // the key was used for another body
            return state.matches("2[23].*") ? 400 : 500; // the order's own data; or sent again later
        }
    }

    public static void main(String[] args) throws IOException {
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1",
            Integer.parseInt(System.getenv().getOrDefault("PORT", "8080"))), 128);
        server.createContext("/messages", x -> { x.sendResponseHeaders(message(x), -1); x.close(); });
        server.createContext("/healthz", x -> { x.sendResponseHeaders(200, -1); x.close(); });
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.start();
    }
}
