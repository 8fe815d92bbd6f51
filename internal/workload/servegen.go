package workload

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// Client is the load from one client, as a list of windows.
type Client struct {
	Name    string
	Windows []Window
}

// ServeGenWindow is the length of a window in seconds.
const ServeGenWindow = 600

// ReadServeGen reads a trace in the format [ServeGen]. It ignores the second parameter of the
// distribution, which only sets the rate. Clients are in the order of the file. All must have the
// same number of windows.
func ReadServeGen(r io.Reader) (all []Client, err error) {
	rows := csv.NewReader(r)
	rows.FieldsPerRecord = 7
	number := make(map[string]int)
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		n, ok := number[row[0]]
		if !ok {
			n = len(all)
			number[row[0]], all = n, append(all, Client{Name: row[0]})
		}
		w, err := windowOf(row, len(all[n].Windows)*ServeGenWindow)
		if err != nil {
			line, _ := rows.FieldPos(0)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		all[n].Windows = append(all[n].Windows, w)
	}
	sends := false
	for _, c := range all {
		if len(c.Windows) != len(all[0].Windows) {
			return nil, fmt.Errorf("the client %s has %d windows, and the first %d: write the rate 0 where it sends nothing",
				c.Name, len(c.Windows), len(all[0].Windows))
		}
		sends = sends || slices.ContainsFunc(c.Windows, func(w Window) bool { return w.Rate > 0 })
	}
	if !sends {
		return nil, errors.New("no client sends anything")
	}
	return all, nil
}

// windowOf parses a row. It returns an error if the window does not begin at the time begins.
func windowOf(row []string, begins int) (Window, error) {
	start, startErr := strconv.ParseFloat(row[1], 64)
	rate, rateErr := strconv.ParseFloat(row[2], 64)
	shape, shapeErr := strconv.ParseFloat(row[5], 64)
	if err := errors.Join(startErr, rateErr, shapeErr); err != nil {
		return Window{}, err
	}
	w := Window{Seconds: ServeGenWindow, Rate: rate, Shape: shape, Weibull: row[4] == "Weibull"}
	switch {
	case start != float64(begins):
		return w, fmt.Errorf("a window begins at %g s, want %d", start, begins)
	case rate > 0 && !w.Weibull && row[4] != "Gamma":
		return w, fmt.Errorf("the family is %q: write Gamma or Weibull", row[4])
	}
	return w, w.flaw()
}

// readClients reads a trace in the format [ServeGen], and makes each client a model.
func readClients(r io.Reader, _ Options) (trace, error) {
	clients, err := ReadServeGen(r)
	t := trace{about: fmt.Sprintf("%d clients, each a model", len(clients))}
	for _, c := range clients {
		t.processes = append(t.processes, process{model: c.Name, windows: c.Windows})
	}
	return t, err
}
