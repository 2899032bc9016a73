//! The driver model: from ioctls and mappings to clients, memory objects, channels and engines. Pure.
