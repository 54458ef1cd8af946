"""Traces as OpenTelemetry spans: read exports of any encoding, write our own, turn live spans into traces."""
