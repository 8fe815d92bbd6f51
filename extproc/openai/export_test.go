package openai

// ClosedPaths are the paths of the table, as they stand there.
func ClosedPaths() []string {
	var all []string
	for _, row := range closed {
		all = append(all, row.path)
	}
	return all
}

// Unexplained are those that the table does not say where they are from, or why they are closed.
func Unexplained() []string {
	var all []string
	for _, row := range closed {
		if row.source == "" || row.why == "" {
			all = append(all, row.path)
		}
	}
	return all
}
