// Package relayed contains the token of a request that extproc sends through its relay. It is
// generated from the protocol file in this folder.
package relayed
