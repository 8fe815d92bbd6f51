package fleet

import (
	"image/png"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// A plot has a colour for each curve, and its legend lies to the right of the curves.
func TestPlotCurves(t *testing.T) {
	dir := t.TempDir()
	path, err := plotCurves(dir, Workload{Name: "some"}, 0.99, []curve{
		{"a", []point{{3, 0.98}, {1, 1}, {2, 0.99}}}, {"b", []point{{1, 0.999}, {2, 0.97}, {4, 0.1}}},
	})
	if err != nil || path != filepath.Join(dir, "some.png") {
		t.Fatalf("it wrote %s: %v", path, err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	is, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	colours := make(map[[3]uint32]bool)
	for x := range is.Bounds().Dx() {
		for y := range is.Bounds().Dy() {
			r, g, b, _ := is.At(x, y).RGBA()
			if max(r, g, b)-min(r, g, b) > 0x5000 {
				colours[[3]uint32{r >> 13, g >> 13, b >> 13}] = true
			}
		}
	}
	if is.Bounds().Dx() < 700 || len(colours) < 2 {
		t.Errorf("the plot has %v and %d colours", is.Bounds(), len(colours))
	}
	if _, err := plotCurves(filepath.Join(dir, "none"), Workload{Name: "some"}, 0.99, nil); err == nil {
		t.Error("it writes to a directory that does not exist")
	}
}

func TestRatio(t *testing.T) {
	// Logarithms of 2, 2 and 0.5: mean 0.231, deviation 0.800; Student's t of two degrees of
	// freedom is 4.303.
	mean, within := ratio([]float64{4, 6, 4}, []float64{2, 3, 8})
	if math.Abs(mean-math.Exp(math.Ln2/3)) > 1e-9 || math.Abs(within-math.Expm1(4.3027*0.80038/math.Sqrt(3))) > 1e-3 {
		t.Errorf("%g ± %g", mean, within)
	}
	if mean, within := ratio([]float64{3}, []float64{2}); mean != 1.5 || within != 0 {
		t.Errorf("of one seed %g ± %g", mean, within)
	}
	if mean, within := ratio([]float64{3, 0}, []float64{2, 1}); mean != 0 || within != 0 {
		t.Errorf("where there is no goodput %g ± %g", mean, within)
	}
}
