"""Publishes with kombu as Celery does: URL, queue, queue that dead-letters to it."""

import sys

import kombu

url, queue, waiting = sys.argv[1:]
headers = {
    "big": 1099511627777,
    "negative": -5,
    "eta": None,
    "retries": 0,
    "timelimit": [None, None],
    "argsrepr": "('Müller',)",
}
with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
    producer = connection.Producer()
    for _ in range(2):
        producer.publish({"n": 1}, routing_key=queue, serializer="json", headers=headers, message_id="rich",
                         correlation_id="corr 1", priority=0)
    producer.publish({"n": 2}, routing_key=waiting, serializer="json", headers=headers, message_id="dead")
    producer.publish({"n": 3}, routing_key=queue, serializer="json", compression="zlib", message_id="packed")
