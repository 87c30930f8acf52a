"""Gateways, proxies, official clients and histories for the tests."""
