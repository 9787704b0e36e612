"""A recorded chat is published and followed while parts of the service are killed."""
