// Package engine is what each engine speaks: the names of its metrics and what they mean, and the names that it takes
// for a model. It is pure: it reads bytes that others fetched.
package engine
