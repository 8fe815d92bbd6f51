// Package engine knows each engine's protocol: the names and meaning of its metrics, and valid
// model names. It is pure: it parses bytes that others fetched.
package engine
