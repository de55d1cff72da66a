// Publishes with amqplib: URL, queue, queue that dead-letters to it.
const amqp = require("amqplib");

const [url, queue, waiting] = process.argv.slice(2);
const when = { "!": "timestamp", value: 1714564800 };
const headers = {
  big: 1099511627777,
  negative: -5,
  negative_short: -300,
  negative_big: -1099511627777,
  unsigned: { "!": "uint32", value: 4294967295 },
  when,
  bytes: Buffer.from([0, 255]),
  float: 1.5,
  single: { "!": "float", value: 0.25 },
  decimal: { "!": "decimal", value: { digits: 1234, places: 2 } },
  yes: true,
  no: false,
  nothing: null,
  text: "Müller",
  nested: { a: { b: [1, "two", { c: true }] }, when },
  list: [1, -1099511627777, "x", null, false],
};
const properties = (messageId) => ({
  messageId, headers, contentType: "application/json", contentEncoding: "utf-8", persistent: true, mandatory: true,
  timestamp: 1714564800123, priority: 5, correlationId: "corr 1", replyTo: "answers", type: "order.paid", appId: "shop",
});

(async () => {
  const connection = await amqp.connect(url);
  const channel = await connection.createConfirmChannel();
  for (let i = 0; i < 2; i++) channel.sendToQueue(queue, Buffer.from('{"n":1}'), properties("rich"));
  channel.sendToQueue(waiting, Buffer.from('{"n":2}'), properties("dead"));
  channel.sendToQueue(queue, Buffer.from("näh"), { messageId: "bare ü" });
  await channel.waitForConfirms();
  await connection.close();
})();
