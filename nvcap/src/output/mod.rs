//! Sinks: each shows the same events in its own way, and knows nothing of where they came from.
