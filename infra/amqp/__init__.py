"""RabbitMQ: the only room that knows pika.

In: bodies with an envelope, for a logical exchange. Out: deliveries that stay ours until they are
acknowledged, confirmed publishes, and a private broker for those who have none.
"""
