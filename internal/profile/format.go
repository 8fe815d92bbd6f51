package profile

import (
	"fmt"
	"strconv"
	"strings"
)

// lineLength is the approximate maximum length of a line of text.
const lineLength = 120

// Format formats a profile as readable YAML, which [Parse] reads. It leaves out fields that have
// their default value.
func Format(p Profile) []byte {
	var out strings.Builder
	fmt.Fprintf(&out, "name: %q\n", p.Name)
	if p.Source != "" {
		out.WriteString("source: " + prose(p.Source) + "\n")
	}
	out.WriteString(optional("frontendOverhead: %v\n", p.FrontendOverhead))
	fmt.Fprintf(&out, "prefill: {%sbase: %v, perToken: %v%s%s}\n", optional("floor: %v, ", p.Prefill.Floor), p.Prefill.Base,
		p.Prefill.PerToken,
		optional(", perTokenSquared: %v", p.Prefill.PerTokenSquared),
		optional(", maxMeasuredTokens: %v", float64(p.Prefill.MaxMeasuredTokens)))
	fmt.Fprintf(&out, "decode: {base: %v, perSequence: %v, perKVToken: %v%s}\n",
		p.Decode.Base, p.Decode.PerSequence, p.Decode.PerKVToken, optional(", adapterSlowdown: %v", p.Decode.AdapterSlowdown))
	fmt.Fprintf(&out, "adapterLoad: {mean: %v, stddev: %v}\nadapterActivation: {mean: %v, stddev: %v}\n", p.AdapterLoad.Mean,
		p.AdapterLoad.StdDev, p.AdapterActivation.Mean, p.AdapterActivation.StdDev)
	out.WriteString(optional("launchOverhead: %v\n", p.LaunchOverhead))
	out.WriteString(optional("mixedBatchOverhead: %v\n", p.MixedBatchOverhead))
	if p.AsyncScheduling {
		out.WriteString("asyncScheduling: true\n")
	}
	l := p.Limits
	fmt.Fprintf(&out, "limits: {maxSequences: %d, maxBatchedTokens: %d, kvBlocks: %d, blockSize: %d, gpuAdapters: %d, hostAdapters: %d}\n",
		l.MaxSequences, l.MaxBatchedTokens, l.KVBlocks, l.BlockSize, l.GPUAdapters, l.HostAdapters)
	return []byte(out.String())
}

// FormatBatches formats a batch profile as readable YAML, which [ParseBatches] reads.
func FormatBatches(b *Batches) []byte {
	var out strings.Builder
	fmt.Fprintf(&out, "name: %q\n", b.Name)
	if b.Source != "" {
		out.WriteString("source: " + prose(b.Source) + "\n")
	}
	for _, f := range []struct{ field, is string }{{"model", b.Model}, {"hardware", b.Hardware}} {
		if f.is != "" {
			fmt.Fprintf(&out, "%s: %q\n", f.field, f.is)
		}
	}
	out.WriteString(optional("price: %v\n", b.Price) + "batches:\n")
	for _, is := range b.Batches {
		fmt.Fprintf(&out, "- size: %d\n  mean: %v\n", is.Size, is.Mean)
		if len(is.Quantiles) > 0 {
			out.WriteString("  quantiles:\n")
		}
		for _, q := range is.Quantiles {
			fmt.Fprintf(&out, "  - {share: %v, seconds: %v}\n", q.Share, q.Seconds)
		}
	}
	return []byte(out.String())
}

// Rounded rounds a number to four significant digits, since no measurement is more precise.
func Rounded(figure float64) float64 {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(figure, 'g', 4, 64), 64) // cannot fail: the text is a formatted number
	return rounded
}

// optional formats a field. It returns "" if the value is 0.
func optional(format string, value float64) string {
	if value == 0 {
		return ""
	}
	return fmt.Sprintf(format, value)
}

// prose formats text as a folded YAML block, or in quotes if a block would change the text.
func prose(text string) string {
	words := strings.Fields(text)
	if strings.Join(words, " ") != text || strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	var out strings.Builder
	out.WriteString(">-\n ")
	length := 0
	for _, w := range words {
		if length += len(w) + 1; length > lineLength && length > len(w)+1 {
			out.WriteString("\n ")
			length = len(w) + 1
		}
		out.WriteString(" " + w)
	}
	return out.String()
}
