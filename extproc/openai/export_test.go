package openai

// ClosedPaths are the paths of the table, as they stand there.
func ClosedPaths() []string {
	var all []string
	for _, row := range closed {
		all = append(all, row.path)
	}
	return all
}
