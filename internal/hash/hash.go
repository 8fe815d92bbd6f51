// Package hash has the two hash functions of Headgate. Equal inputs give equal hashes in every
// process and version: simulations print the same figures, and control and extproc agree.
package hash

// Gamma is the increment of the generator splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
const Gamma = 0x9e3779b97f4a7c15

// Mix returns the output of splitmix64 in state x. It is a bijection that spreads x over all bits.
func Mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Fold returns the hash of a sequence with hash h and one more value, by one step of [Mix].
func Fold(h, value uint64) uint64 {
	h = (h ^ value ^ Gamma) * 0xbf58476d1ce4e5b9
	return h ^ h>>31
}

// Start is the hash of nothing by FNV-1a with 64 bits.
const Start = 14695981039346656037

// Add returns the FNV-1a hash of a sequence with hash h and one more value.
func Add(h, value uint64) uint64 { return (h ^ value) * 1099511628211 }

// Of returns the FNV-1a hash of a text. It allocates nothing.
func Of[T ~string | ~[]byte](text T) uint64 {
	h := uint64(Start)
	for i := range len(text) {
		h = Add(h, uint64(text[i]))
	}
	return h
}
