//! What a pod should get: sources and annotation formats.
