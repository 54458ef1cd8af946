"""Search algorithms: backprop rounds. Each is a Strategy that works through the services of a Session."""
