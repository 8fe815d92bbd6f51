package engine

import "bytes"

// ParseWhole is the oracle for Reader.Load: it parses every line of the page.
func ParseWhole(page []byte, kind Kind) (Load, error) { return parseLoad(bytes.NewReader(page), kind) }
