#!/bin/sh
# Runs Dapr's sidecar as a peer: run.sh AMQP_URL QUEUE HANDLER_URL CONCURRENCY PREFETCH
#
# It needs daprd in PATH. Dapr declares the queue as it thinks it should be, so
# the queue must be durable and of the type named below, and binds it to an
# exchange of its own. It wraps each message into a CloudEvent and passes no
# message ID on, so its requests can be counted but not told apart.
set -eu
amqp=$1 queue=$2 url=$3 concurrency=$4 prefetch=$5
port=${url##*:} port=${port%%/*}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/pubsub.yaml" <<YAML
apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {name: pubsub}
spec:
  type: pubsub.rabbitmq
  version: v1
  metadata:
    - {name: connectionString, value: "$amqp"}
    - {name: consumerID, value: bench}
    - {name: durable, value: "true"}
    - {name: deletedWhenUnused, value: "false"}
    - {name: requeueInFailure, value: "true"}
    - {name: prefetchCount, value: "$prefetch"}
    - {name: concurrencyMode, value: parallel}
YAML
cat >"$dir/subscription.yaml" <<YAML
apiVersion: dapr.io/v2alpha1
kind: Subscription
metadata: {name: bench}
spec:
  pubsubname: pubsub
  topic: bench
  routes: {default: /messages}
  metadata:
    rawPayload: "true"
    queueName: "$queue"
    queueType: "${QUEUE_TYPE:-quorum}"
YAML
# The signal that ends the run goes to this shell; pass it on.
daprd --app-id bench --app-port "$port" --app-protocol http --app-max-concurrency "$concurrency" \
	--resources-path "$dir" --enable-metrics=false --log-level warn &
trap 'kill "$!" 2>/dev/null' TERM INT
wait "$!" || true
wait "$!" || true
