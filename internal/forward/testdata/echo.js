// Answers every POST with what the application sees of some headers, in JSON, as
// Node reads them.
const http = require('http')

const names = ['idempotency-key', 'amqp-message-id', 'amqp-encoded', 'host', 'content-length']

const server = http.createServer((req, res) => {
  let length = 0
  req.on('data', (chunk) => { length += chunk.length })
  req.on('end', () => {
    const seen = { 'body-length': String(length) }
    for (const name of names) seen[name] = (req.headers[name] || '').slice(0, 1000)
    const answer = JSON.stringify(seen)
    res.writeHead(200, { 'Content-Length': Buffer.byteLength(answer) })
    res.end(answer)
  })
})
server.listen(0, '127.0.0.1', () => console.log(server.address().port))
