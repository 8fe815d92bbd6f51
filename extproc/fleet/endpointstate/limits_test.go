package endpointstate

import "testing"

// The parts of a limit add up to the limit. They differ by at most one, and each is at least one.
func TestPartsAddUpToTheLimit(t *testing.T) {
	if one := (Share{}).Of(5, 3); one != 5 {
		t.Errorf("a single process has %d of 5", one)
	}
	for processes := 1; processes <= 9; processes++ {
		for limit := 1; limit <= 40; limit++ {
			for turn := range uint64(20) {
				sum := 0
				for i := range processes {
					part := Share{i, processes}.Of(limit, turn)
					if sum += part; part < 1 || part < limit/processes || part > limit/processes+1 {
						t.Fatalf("of %d, process %d of %d has %d", limit, i, processes, part)
					}
				}
				if want := max(limit, processes); sum != want {
					t.Fatalf("all %d processes have %d of %d together, turn %d", processes, sum, limit, turn)
				}
			}
		}
	}
}

// At different copies, different processes get the remainder of the limit.
func TestRemainderRotates(t *testing.T) {
	var more [3]int
	for turn := range uint64(300) {
		for i := range more {
			more[i] += Share{i, 3}.Of(4, turn) - 1
		}
	}
	if more != [3]int{100, 100, 100} {
		t.Errorf("of 300 copies with a limit of 4, the processes have one more at %v", more)
	}
}
