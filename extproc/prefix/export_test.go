package prefix

import "slices"

// Len returns the number of blocks that an endpoint has.
func (x *Index) Len(endpoint int) int { return x.parts[endpoint].count }

// Empty reports whether both tables are empty, and all entries that were ever used are free.
func (x *Index) Empty() bool {
	words, places := uint32(0), uint32(0)
	for at := x.words.free; at != 0; at = x.words.at[at].next {
		words++
	}
	for at := x.places.free; at != 0; at = x.places.at[at].next {
		places++
	}
	filled := func(head uint32) bool { return head != 0 }
	return words == x.words.used && places == x.places.used && x.parted == 0 &&
		!slices.ContainsFunc(x.words.buckets, filled) && !slices.ContainsFunc(x.places.buckets, filled)
}
