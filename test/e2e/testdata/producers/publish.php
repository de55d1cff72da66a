<?php
// Publishes with php-amqplib: URL, queue, queue that dead-letters to it, and
// "strict" for the field types of the specification instead of RabbitMQ's.
if (($argv[4] ?? '') === 'strict') {
    define('AMQP_STRICT_FLD_TYPES', true);
}
require 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPArray;
use PhpAmqpLib\Wire\AMQPDecimal;
use PhpAmqpLib\Wire\AMQPTable;

[, $url, $queue, $waiting] = $argv;
$u = parse_url($url);
$when = new DateTime('2024-05-01T12:00:00Z');
$headers = new AMQPTable([
    'big' => 1099511627777,
    'odd' => 9007199254740993,
    'negative' => -5,
    'negative_big' => -1099511627777,
    'when' => $when,
    'float' => 1.5,
    'decimal' => new AMQPDecimal(1234, 2),
    'yes' => true,
    'no' => false,
    'nothing' => null,
    'text' => 'Müller',
    'nested' => ['a' => ['b' => [1, 'two', ['c' => true]]], 'when' => $when],
    'list' => [1, -1099511627777, 'x', null, false],
]);
$headers->set('small', -5, AMQPTable::T_INT_SHORTSHORT);
if (!defined('AMQP_STRICT_FLD_TYPES')) { // the broker itself refuses the strict U
    $headers->set('short', -300, AMQPTable::T_INT_SHORT);
}
$headers->set('unsigned', 4294967295, AMQPTable::T_INT_LONG_U);
$headers->set('bytes', "\x00\xff", AMQPTable::T_BYTES);

$message = fn (string $id, string $body) => new AMQPMessage($body, [
    'message_id' => $id, 'content_type' => 'application/json', 'content_encoding' => 'utf-8', 'delivery_mode' => 2,
    'application_headers' => $headers, 'timestamp' => 1714564800123, 'priority' => 5, 'correlation_id' => 'corr 1',
    'reply_to' => 'answers', 'type' => 'order.paid', 'app_id' => 'shop',
]);

$vhost = rawurldecode(substr($u['path'] ?? '/', 1)) ?: '/';
$connection = new AMQPStreamConnection($u['host'], $u['port'] ?? 5672, rawurldecode($u['user']), rawurldecode($u['pass']), $vhost);
$channel = $connection->channel();
$channel->confirm_select();
$channel->basic_publish($message('rich', '{"n":1}'), '', $queue, true);
$channel->basic_publish($message('rich', '{"n":1}'), '', $queue, true);
$channel->basic_publish($message('dead', '{"n":2}'), '', $waiting, true);
$channel->wait_for_pending_acks(30);
$channel->close();
$connection->close();
