"""Agents in other languages and processes: RemoteAgent calls them, AgentService serves an agent of ours to others."""
