package eds

// Read and Written convert endpoints from and to text, for the tests of package eds_test.
var (
	Read    = read
	Written = written
)
