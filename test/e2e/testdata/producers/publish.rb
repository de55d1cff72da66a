# Publishes with bunny: URL, queue, queue that dead-letters to it.
require "bunny"
require "bigdecimal"

url, queue, waiting = ARGV
at = Time.utc(2024, 5, 1, 12, 0, 0)
headers = {
  "big" => 1099511627777,
  "odd" => 9007199254740993,
  "negative" => -5,
  "negative_big" => -1099511627777,
  "when" => at,
  "float" => 1.5,
  "decimal" => BigDecimal("12"),
  "yes" => true,
  "no" => false,
  "nothing" => nil,
  "text" => "Müller",
  "bytes" => "\x00\xFF".b,
  "nested" => { "a" => { "b" => [1, "two", { "c" => true }] }, "when" => at },
  "list" => [1, -1099511627777, "x", nil, false],
}
properties = lambda do |to, id|
  {
    routing_key: to, message_id: id, headers: headers, content_type: "application/json", content_encoding: "utf-8",
    persistent: true, mandatory: true, timestamp: 1714564800123, priority: 5, correlation_id: "corr 1",
    reply_to: "answers", type: "order.paid", app_id: "shop",
  }
end

connection = Bunny.new(url.delete_suffix("/")) # to bunny, a last slash means a virtual host without a name
connection.start
channel = connection.create_channel
channel.confirm_select
exchange = channel.default_exchange
2.times { exchange.publish('{"n":1}', properties.call(queue, "rich")) }
exchange.publish('{"n":2}', properties.call(waiting, "dead"))
exchange.publish("näh", routing_key: queue, message_id: "bare ü", mandatory: true)
channel.wait_for_confirms or abort "not confirmed"
connection.close
