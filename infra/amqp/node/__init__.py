"""What a private RabbitMQ node is made of: install, configuration, ports, child processes."""
