<?php
// Orders behind inboxd: PHP and PDO.
//
// Debian: php-cli php-pgsql. To try it:
//   PHP_CLI_SERVER_WORKERS=8 php -S 127.0.0.1:8080 app.php
declare(strict_types=1);

ignore_user_abort(true); // finish, whether or not somebody waits for the answer

function connect(): PDO
{
    $u = parse_url(getenv('DATABASE_URL'));
    parse_str($u['query'] ?? '', $options);
    $dsn = sprintf("pgsql:host=%s;port=%d;dbname=%s;sslmode=%s", $u['host'], $u['port'] ?? 5432,
        ltrim($u['path'], '/'), $options['sslmode'] ?? 'prefer');
    return new PDO($dsn, urldecode($u['user'] ?? ''), urldecode($u['pass'] ?? ''), [
        PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION,
    ]);
}

// takeOrder commits the key and the order together; false: they were before.
function takeOrder(string $consumer, string $key, ?string $fingerprint, array $order): bool
{
    $db = connect();
    $db->beginTransaction(); // an exception ends the connection, and so rolls back
    $claim = $db->prepare('select inbox_claim(?, ?, ?)');
    $claim->execute([$consumer, $key, $fingerprint]);
    if (!$claim->fetchColumn()) {
        $db->rollBack();
        return false;
    }
    $db->prepare('insert into orders (order_id, customer, amount_cents) values (?, ?, ?)')
        ->execute([$order['order_id'], $order['customer'], $order['amount_cents']]);
    $db->commit();
    return true; // only now it is committed
}

function message(): array
{
    $key = $_SERVER['HTTP_IDEMPOTENCY_KEY'] ?? '';
    $consumer = $_SERVER['HTTP_INBOX_CONSUMER'] ?? '';
    $order = json_decode(file_get_contents('php://input'), true);
    if (!is_array($order) || !isset($order['order_id'], $order['customer'], $order['amount_cents'])
        || $key === '' || $consumer === '') {
        return [400, null]; // this message will never do: it is parked
    }
    try {
        $first = takeOrder($consumer, $key, $_SERVER['HTTP_INBOX_FINGERPRINT'] ?? null, $order);
        return [200, $first ? 'processed' : 'duplicate'];
    } catch (PDOException $e) {
        $state = (string) $e->getCode();
        return match (true) {
            $state === 'IB422' => [422, null], // the key was used for another body
            preg_match('/^2[23]/', $state) === 1 => [400, null], // the order's own data
            default => [500, null], // sent again later
        };
    }
}

[$status, $outcome] = match ([$_SERVER['REQUEST_METHOD'], parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH)]) {
    ['POST', '/messages'] => message(),
    ['GET', '/healthz'] => [200, null],
    default => [404, null],
};
http_response_code($status);
if ($outcome !== null) {
    header("Inbox-Outcome: $outcome");
}
