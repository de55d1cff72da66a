// Orders behind inboxd: Node.js, pg and the standard library's HTTP server.
//
// npm: pg
import http from 'node:http';
import pg from 'pg';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 16 });
pool.on('error', () => {}); // an idle connection broke: the pool opens another

// takeOrder commits the key and the order together; false: they were before.
async function takeOrder(consumer, key, fingerprint, order) {
  const db = await pool.connect();
  let broken;
  try {
    await db.query('begin');
    const claim = await db.query('select inbox_claim($1, $2, $3) as first', [consumer, key, fingerprint]);
    if (claim.rows[0].first) {
      await db.query('insert into orders (order_id, customer, amount_cents) values ($1, $2, $3)',
        [order.order_id, order.customer, order.amount_cents]);
    }
    await db.query('commit');
    return claim.rows[0].first; // only now it is committed
  } catch (err) {
    await db.query('rollback').catch((e) => { broken = e; });
    throw err;
  } finally {
    db.release(broken); // a broken connection does not go back into the pool
  }
}

function parseOrder(body) {
  try {
    const order = JSON.parse(body);
    return order?.order_id && order.customer && order.amount_cents !== undefined ? order : null;
  } catch {
    return null;
  }
}

async function message(req) {
  const chunks = [];
  for await (const chunk of req) chunks.push(chunk);
  const order = parseOrder(Buffer.concat(chunks).toString());
  const key = req.headers['idempotency-key'];
  const consumer = req.headers['inbox-consumer'];
  if (!order || !key || !consumer) return [400]; // this message will never do: it is parked
  try {
    const first = await takeOrder(consumer, key, req.headers['inbox-fingerprint'], order);
    return [200, first ? 'processed' : 'duplicate'];
  } catch (err) {
    if (err.code === 'IB422') return [422]; // the key was used for another body
    if (/^2[23]/.test(err.code)) return [400]; // the order's own data
    return [500]; // sent again later
  }
}

const server = http.createServer(async (req, res) => {
  let status = 404;
  let outcome;
  try {
    if (req.method === 'POST' && req.url === '/messages') [status, outcome] = await message(req);
    else if (req.url === '/healthz') status = 200;
  } catch {
    status = 500; // the client went away while it was sending
  }
  res.writeHead(status, outcome ? { 'Inbox-Outcome': outcome } : {}).end();
});
server.listen(Number(process.env.PORT ?? 8080), '127.0.0.1');
