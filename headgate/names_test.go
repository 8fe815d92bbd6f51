package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/headgate/headgate/test/surface"
)

// kinds are the simulated engines that have flags of their own.
var kinds = []string{"engine --kind modelruntime", "engine --kind triton"}

// flagLine matches a flag in the list of flags of a help text.
var flagLine = regexp.MustCompile(`(?m)^ {2,6}(?:-\w, +)?(--[a-z][a-z0-9-]*)`)

// TestNames compares the names of commands and of their flags with the golden list.
func TestNames(t *testing.T) {
	commands := kinds
	for _, group := range program.Groups {
		for _, c := range group.Commands {
			commands = append(commands, c.Name)
			for _, below := range c.Below {
				commands = append(commands, c.Name+" "+below)
			}
		}
	}
	var names []string
	for _, command := range commands {
		names = append(names, "headgate "+command)
		_, help, _ := runHeadgate(t, append(append([]string{"headgate"}, strings.Fields(command)...), "--help")...)
		for _, flag := range flagLine.FindAllStringSubmatch(help, -1) {
			names = append(names, command+" "+flag[1])
		}
	}
	surface.Check(t, "flags", names)
}
