package eds

// Read and Written have endpoints as text in tests of the Server, too.
var (
	Read    = read
	Written = written
)
