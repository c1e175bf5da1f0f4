"""The configured object store: options, key rings, metering, checks, object encoding."""
