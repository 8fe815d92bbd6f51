package lending

// Claim is what one process needs of a limit.
type Claim struct {
	// Want is how much it needs now, and Unit its largest single request: less than that is
	// useless.
	Want, Unit int64
}

// Divide divides a number of units among claims, and returns the part of each. The parts never add
// up to more than all. If there is enough, each gets what it wants. Otherwise each gets an equal
// part of what is left for it and those after it, or one unit if that is more. Turn says which
// claim is the first; callers change it over time, so that no claim gets nothing for ever.
func Divide(all int64, claims []Claim, turn int) []int64 {
	parts := make([]int64, len(claims))
	left := max(0, all)
	n := int64(len(claims))
	for i := range claims {
		at := (i + turn) % len(claims)
		c := claims[at]
		parts[at] = max(0, min(c.Want, max(left/(n-int64(i)), c.Unit), left))
		left -= parts[at]
	}
	for i := range claims { // what the others did not want
		at := (i + turn) % len(claims)
		more := max(0, min(claims[at].Want-parts[at], left))
		parts[at] += more
		left -= more
	}
	return parts
}
