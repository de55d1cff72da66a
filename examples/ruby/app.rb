# Orders behind inboxd: Ruby, pg and WEBrick.
#
# Debian: ruby ruby-pg ruby-webrick; gems: pg webrick
require 'json'
require 'pg'
require 'webrick'

POOL = Queue.new
8.times { POOL << nil } # connections are opened when they are needed

def with_connection
  db = POOL.pop
  db ||= PG.connect(ENV.fetch('DATABASE_URL'))
  yield db
ensure
  db = nil if db && (db.finished? || db.status != PG::CONNECTION_OK)
  POOL << db
end

# Commits the key and the order together; false: they were committed before.
def take_order(consumer, key, fingerprint, order)
  with_connection do |db|
    db.transaction do # commits at the end, rolls back on an exception
      claim = db.exec_params('select inbox_claim($1, $2, $3)', [consumer, key, fingerprint])
      next false unless claim.getvalue(0, 0) == 't'

      db.exec_params('insert into orders (order_id, customer, amount_cents) values ($1, $2, $3)',
                     order.values_at('order_id', 'customer', 'amount_cents'))
      true
    end
  end
end

def parse_order(body)
  order = JSON.parse(body.to_s)
  order if order.is_a?(Hash) && %w[order_id customer amount_cents].all? { |k| order[k] }
rescue JSON::ParserError
  nil
end

def message(req)
  order = parse_order(req.body)
  key = req['Idempotency-Key']
  consumer = req['Inbox-Consumer']
  return [400] unless order && key && consumer # this message will never do: it is parked

  first = take_order(consumer, key, req['Inbox-Fingerprint'], order)
  [200, first ? 'processed' : 'duplicate']
rescue PG::Error => e
  state = e.respond_to?(:result) && e.result ? e.result.error_field(PG::Result::PG_DIAG_SQLSTATE) : ''
  case state
  when 'IB422' then [422] # the key was used for another body
  when /\A2[23]/ then [400] # the order's own data
  else [500] # sent again later
  end
end

server = WEBrick::HTTPServer.new(BindAddress: '127.0.0.1', Port: ENV.fetch('PORT', 8080).to_i,
                                 AccessLog: [], Logger: WEBrick::Log.new($stderr, WEBrick::Log::WARN))
server.mount_proc('/messages') do |req, res|
  res.status, outcome = req.request_method == 'POST' ? message(req) : [405]
  res['Inbox-Outcome'] = outcome if outcome
end
server.mount_proc('/healthz') { |_, res| res.status = 200 }
trap('TERM') { server.shutdown }
server.start
